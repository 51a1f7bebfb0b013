"""How do roles come to live on many machines? An engine opens sites, and every site starts the roles placed there."""
