"""Go's text/template as Ollama's templates use it, parsed and run within limits. The entry point is `template`."""
