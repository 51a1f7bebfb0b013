"""Pages of docs/ that are made from what the catalog's entries declare: `python -m tests.pages` writes them."""
