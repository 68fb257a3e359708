"""A Report in, a picture out: text, HTML, a Plotly figure, and the bundle of all of them for a notebook."""
