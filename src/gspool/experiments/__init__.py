"""One file a figure or table of the paper: what it promises, how it runs, how it is drawn.

Results go into JSON files that know where they come from (`certificate`), and from there into the documents (`report`).
"""
