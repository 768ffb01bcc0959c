"""Relevance (LRP): a rule for every operation, and the autograd node that applies it.

dispatch.py turns an operation of the forward pass into a call (calls.py), which has what its rule must know. The node
(node.py) keeps the call in the graph; when relevance comes back, it applies the rule that the recipe (recipes.py) has
for this kind of operation. The rules are functions of a call and what arrives: rules.py has those that send relevance
R, slopes.py those that send R / x.
"""
