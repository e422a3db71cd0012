"""From a client's request to an upstream and back: the choice, the attempts, the streams."""
