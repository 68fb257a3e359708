"""What a notebook sees: magics. This storey may import the core; the core never imports it, nor IPython."""
