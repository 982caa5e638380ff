"""The pages that the commands show with --help."""

TRAIN = """
Train an embedding model and evaluate it on classes it has never seen.

Without arguments, GSP and then GAP are trained on glyph collages (a synthetic data set, no download). The run ends with
a table and a report.html with curves, retrieval examples and maps of the pooling weights.

    gspool train                                                   GSP and GAP on glyphs, minutes on a CPU
    gspool train --preset folder --data.root pictures/             your own images: pictures/CLASS/picture.jpg
    gspool train --preset paper/cub --data.root datasets/ \\
        --model.backbone_options.weights bninception.safetensors   a benchmark of the paper
    gspool train --preset paper/cub --print_config > cub.yaml      write a configuration, edit it ...
    gspool train --config cub.yaml --trainer.seed 1                ... and run it
    gspool train --resume runs/NAME                                continue after Ctrl-C, a crash or a kill

The folder of a run holds config.yaml, versions.json, log.txt, metrics.csv, tensorboard/, last.pt, previous.pt, best.pt,
model/ (for gspool.Embedder.from_pretrained), result.json and report.html.
"""

EVALUATE = """
Measure a trained model: P@1, P@R, MAP@R and R@K on the data it was trained for, or on other data.

    gspool evaluate runs/NAME                                      its own test classes
    gspool evaluate runs/NAME --split validation
    gspool evaluate runs/NAME --data pictures/                     other images: pictures/CLASS/picture.jpg or a CSV
    gspool evaluate runs/NAME --data cub --data.root datasets/     another data set
    gspool evaluate path/to/model --data.name glyphs               a folder written by save_pretrained

Every image is searched among all others of the split (queries in the gallery, where the data has both). Other images
are measured whole, with all their classes, unless they come with splits of their own: folders train/, val/, test/, or a
column split in the CSV. --data.root alone says where the run's own data is now.
"""
