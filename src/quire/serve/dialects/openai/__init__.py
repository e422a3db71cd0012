"""OpenAI's API: chat completions, completions, models, with the fields that other servers have added."""
