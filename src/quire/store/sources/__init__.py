"""Where models come from, one file each, found by `source.all_sources`."""
