"""What other libraries need at a region's border; each module is loaded only when its library already is."""
