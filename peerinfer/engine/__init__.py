"""The engines behind the Engine port."""
