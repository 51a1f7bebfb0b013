"""Which version answers a request? One, a trial of a new one, or several that are judged by feedback."""
