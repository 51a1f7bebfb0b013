"""Who runs when? One queue of jobs for each cluster."""
