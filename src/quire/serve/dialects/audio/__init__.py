"""OpenAI's audio endpoints: transcriptions and translations."""
