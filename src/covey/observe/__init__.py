"""What happened? Instruments watch an engine; tallies, results and traces are what they bring home."""
