"""The pages that embed and search show with --help."""

EMBED = """
Embed pictures: one vector an image, with its path, label and size, in a file that search and other programs read.

    gspool embed runs/NAME pictures/ --out vectors.lance           a folder; labels are its sub-folders
    gspool embed runs/NAME "scans/**/*.png" list.csv --out vectors.parquet
    gspool embed owner/name pictures/ --out vectors.npz            a model of the Hugging Face hub
    gspool embed runs/NAME /shared/pictures --out vectors.lance --ray auto     by all machines of a Ray cluster

A .lance table is for `gspool search`; .parquet and .npz are for other programs (and can be searched too). A CSV list
has a column path and may have a column label. Run the same command again after Ctrl-C, a crash, or when pictures have
come, changed or gone: what is in the file is skipped, what has another size or time of change is embedded again, what
is gone is counted, and its rows are taken out with --remove_gone. Pictures that cannot be read are listed in
FILE.bad.csv. From 100,000 vectors on, a .lance table gets an approximate index; its recall against exact search is
measured and printed.
"""
EMBED_USAGE = "gspool embed MODEL IMAGES... --out FILE.lance|.parquet|.npz [--OPTION VALUE ...]"

SEARCH = """
Find the nearest neighbours of pictures among the vectors that gspool embed wrote.

    gspool search runs/NAME query.jpg --index vectors.lance
    gspool search runs/NAME query.jpg --index vectors.lance --picture found.png     with the pooling weights on each
    gspool search runs/NAME queries/ --index vectors.lance --k 5 --json answers.jsonl       many queries, a line each
    gspool search runs/NAME query.jpg --index vectors.lance --label ant bee         among these labels only
    gspool search runs/NAME query.jpg --index vectors.lance --where "width >= 640 AND label IS NOT NULL"

Scores are cosines: 1 is the same direction. Search is exact below 100,000 vectors. Above, it goes through an
approximate index, which is built on first use and tuned to --recall; the recall measured against exact search is
printed. --exact leaves it out; --check searches these very queries both ways and prints the recall on them.
"""
SEARCH_USAGE = "gspool search MODEL QUERY... --index FILE [--k N] [--picture FILE] [--json FILE] [--OPTION VALUE ...]"
