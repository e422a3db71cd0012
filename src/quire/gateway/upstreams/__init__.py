"""The servers behind the gateway: declared, discovered or registered, and checked."""
