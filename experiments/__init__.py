"""What is measured, per paper, and the command that measures it."""
