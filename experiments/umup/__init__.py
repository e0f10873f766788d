"""u-μP: what is measured, claimed and drawn."""
