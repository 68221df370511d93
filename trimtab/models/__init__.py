"""Reference models in plain torch, as in arXiv 2309.16620: none of them knows of any parametrization.

Reading order: `catalogue` (names, options and the sizes each refuses, without torch), `parts`, then a file
for each: `mlp`, `resnet`, `vit`, `gpt`, each a `build(width, depth, **options) -> nn.Module`; `builders`
finds the one of a name.
"""
