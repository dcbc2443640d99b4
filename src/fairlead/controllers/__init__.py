"""One thin module per controller: which kinds it watches, which core decides, how actions are
done.
"""
