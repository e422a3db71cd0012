"""A chat or completion request from decoded body to written answer."""
