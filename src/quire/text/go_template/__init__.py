"""Go's text/template as Ollama's templates use it, read and run within bounds. The way in is `template`."""
