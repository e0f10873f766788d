"""DailyDilemmas measured: preferences, steering, position bias, and what the official score is."""
