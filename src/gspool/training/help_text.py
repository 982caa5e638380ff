"""The pages that the commands show with --help."""

TRAIN = """
Train an embedding model and evaluate it on classes it has never seen.

With nothing else, GSP is trained on glyph collages (drawn from fonts, no download), then GAP in the same way; the end
is a table, and a report.html with curves, retrieval examples and pictures of where the model looks.

    gspool train                                                   GSP and GAP on glyphs, minutes on a CPU
    gspool train --preset folder --data.root pictures/             your own: pictures/CLASS/picture.jpg
    gspool train --preset paper/cub --data.root datasets/ \\
        --model.backbone_options.weights bninception.safetensors   a benchmark of the paper
    gspool train --preset paper/cub --print_config > cub.yaml      look at it, change it ...
    gspool train --config cub.yaml --trainer.seed 1                ... and run it
    gspool train --resume runs/NAME                                go on after Ctrl-C, a crash or a kill

A run's folder holds config.yaml, versions.json, log.txt, metrics.csv, tensorboard/, last.pt, best.pt, model/ (for
gspool.Embedder.from_pretrained), result.json and report.html.
"""

EVALUATE = """
Measure a trained model: P@1, P@R, MAP@R and R@K on the data it was trained for, or on other data.

    gspool evaluate runs/NAME                                      its own test classes
    gspool evaluate runs/NAME --split validation
    gspool evaluate runs/NAME --data pictures/                     other pictures, pictures/CLASS/picture.jpg or a CSV
    gspool evaluate runs/NAME --data cub --data.root datasets/     another data set
    gspool evaluate path/to/model --data.name glyphs               a folder of save_pretrained

Every image is searched among all others of the split (queries among the gallery, where the data has both).
"""
