"""What OpenAI's endpoints share: the fields of a request, in the spellings of several servers, and parts of answers."""
