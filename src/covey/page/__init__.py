"""What are recorded runs doing now? A process of its own that only reads records, and shows them in a browser."""
