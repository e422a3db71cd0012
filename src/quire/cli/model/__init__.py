"""The model that answers `quire run`: in a running server or in this process."""
