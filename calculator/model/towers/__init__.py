"""Encoders beside the language model: vision and audio towers, and the projectors behind them."""
