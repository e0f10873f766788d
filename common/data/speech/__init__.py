"""Speech: filterbanks, noise at a given SNR, and an audio-visual speech set made on the spot."""
