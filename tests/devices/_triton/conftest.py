"""Fixtures of tests whose kernels run on an accelerator or through the interpreter."""

from __future__ import annotations

from tests.devices.interpreted import place, whole_interpreter

__all__ = ["place", "whole_interpreter"]
