"""Who gets the machines next? Pure functions: from what is known of trials, tenants and jobs to the next decision."""
