"""Commands that measure: `quire bench` and `quire simulate`. A checkout has them, a wheel does not."""
