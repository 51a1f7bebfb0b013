"""How do roles come to live on many machines? An engine opens sites, and every site bears the roles placed there."""
