"""The APIs that clients speak: one folder each, whose `dialect.py` has a `DIALECT`; the files are shared by all."""
