"""`quire bench mechanisms`: each mechanism on and off."""
