"""SuperCorrect: what is measured, claimed and drawn."""
