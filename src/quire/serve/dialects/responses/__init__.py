"""OpenAI's responses API."""
