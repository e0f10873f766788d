"""AC router: what is measured, claimed and drawn."""
