"""The characters and faces of the glyph collages, and their masks.

The characters are written out rather than computed, so that a class means the same picture for every version of the
fonts: letters without a decomposition that all twelve DejaVu text faces carry, look-alikes removed (of two letters
whose masks, scaled to one box, agree to a cosine of 0.9, the first stays: "O" yes, "o" no; Latin A yes, Cyrillic A no),
and, as distractors, mathematical and other symbols thinned in the same way.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import UInt8
    from torch import Tensor

LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghijkmnpqrtuxyÆÐØÞßæðøþđħıĸŁłŊŋŒœŧƀƁƃƄƆƇƈƊƋƌƍƎƏƐƑƒƓƔƕƖƘƛƜƝƞƟƢƣƤƦƧƩƪƫƬ"
    "ƭƮƱƲƳƴƶƷƸƺƻƼƽƾƿǁǂǃǝǶȜȡȤȥȴȵȶȷȸȹȺȻȽȾȿɀɁɃɄɌɍɐɑɒɕɖɗɘɚɜɝɞɟɠɢɤɥɧɩɪɫɬɭɮɯɰɱɲɳɷɸɹɺɻɼɽɾɿʀʁʂʃʄʅʆʇʈʉʋʌʍʎʏʐʑʓʔʕʖʗ"
    "ʚʛʜʝʞʣʤʥʦʧʨʩʪʫʬʭʮʯΓΔΞΠΦΨΩαβγδζθμνξπρςστφχψωϗϘϙϚϛϝϞϟϠϡϺϻϼϿЂЉЊЋЏДЖИКЛУЦЧШЩЪЫЮЯбдимпфцчшщъыьэюяђєљњћџѢѣ"
    "ҐґҒҔҕҖҗҘҙҚқҢңҤҥҪҫҬҭүҰҲҺӃӄӇӈӋӶԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՌՍՎՐՒՔՖբգդեէըթժիլխծկձճմյնշչջռվտփքօֆაბგდევზთიკ"
    "ლმნოპჟრსტუფქღყშცწჭჯჰჱჲჳჴჵჶჸჹჺᴂᴈᴉᴔᴖᴗᴝᴞᴟᵷᶅⱤⱮⱵⱶⱷⱺⱾⱿꜧꞋꞌꞐꞑꞪ"
)
SYMBOLS = (
    "+<=>~©¬®°±×÷϶←↑→↓↔↕↖↗↘↙↜↝↞↟↠↡↢↣↤↥↦↧↫↬↭↯↰↱↲↳↴↵↶↷↸↹↺↻↼↽↾↿⇀⇁⇂⇃⇄⇅⇆⇇⇈⇉⇊⇋⇌⇐⇑⇒⇓⇕⇖⇗⇘⇙⇚⇛⇜⇝⇞⇟⇠⇡⇤⇥⇦⇧⇨⇩⇫⇰⇱⇲⇳⇴⇵⇶⇷"
    "⇸⇺⇻⇼⇽⇾⇿∀∂∃∆∇∈∋∏∑∓∕∗√∛∜∝∞∟∠∧∨∩∪∫∸∹∺∽≂≃≈≐≑≒≓≔≡≤≥⊂⊃⊆⊇⊎⊏⊐⊑⊒⊓⊔⊕⊗⊙⊚⊞⊠⊢⊣⊤⊥⋄⌂⌐⌑⌘⌙⌠⌡⌥⌨⍽⎛⎝⎞⎠⎡⎣⎤⎨⎬⏏␣▀▊▌▎░▒▓▙▚▛▜"
    "▞▟□▣▤▥▧▨▫▬▭▯▰▱▲△▶▷▹►▻▼▽◀◁◃◄◅◇◈◉◊○◌◍◎◐◑◒◓◔◘◜◝◞◟◠◡◢◣◤◥◧◨◪◭◮◸◹◺◿☀☸☹☼☿♀♁♂♃♄♅♆♇♠♡♢♤♥♧♩♪♫♬♭♮♯⟵⟶⧫⩪⩫⬈⬉⬊⬋⬌⬍⬒⬓"
    "⬕⬖⬗⬘⬙⬚"
)
FACES = tuple(
    f"DejaVu{family}{style}"
    for family, styles in {
        "Sans": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "SansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
        "Serif": ("", "-Bold", "-Italic", "-BoldItalic"),
    }.items()
    for style in styles
)


def face_file(face: str) -> Path:
    """Find the file of a DejaVu face among the fonts that matplotlib carries.

    Raises:
        FileNotFoundError: if this matplotlib does not carry the face.
    """
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    if not path.is_file():
        raise FileNotFoundError(
            f"the glyph data set draws with the fonts of matplotlib, and {path} is not there; "
            f'reinstall it with pip install --force-reinstall "matplotlib>=3.9"'
        )
    return path


@functools.lru_cache(maxsize=64)
def _face(face: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(face_file(face)), height)


def glyph_masks(characters: Sequence[str], size: int) -> UInt8[Tensor, "K 12 S S"]:
    """Draw every character in every face, the box of its ink centred in a square and filling it but for a margin.

    Faces differ in how large they draw, so a mask is scaled to its square: the class of a glyph is its shape.
    """
    masks = np.zeros((len(characters), len(FACES), size, size), dtype=np.uint8)
    inner = max(round(size * 0.8), 1)
    for column, face in enumerate(FACES):
        font = _face(face, inner)
        for row, character in enumerate(characters):
            left, top, right, bottom = (int(edge) for edge in font.getbbox(character, anchor="ls"))
            canvas = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
            ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=font, anchor="ls")
            # The box that the font tells is that of the advance; the ink is often narrower.
            canvas = canvas.crop(canvas.getbbox())
            scale = inner / max(canvas.size)
            width, height = (max(round(side * scale), 1) for side in canvas.size)
            glyph = canvas.resize((width, height), Image.Resampling.BILINEAR)
            x, y = (size - width) // 2, (size - height) // 2
            masks[row, column, y : y + height, x : x + width] = np.asarray(glyph)
    return torch.from_numpy(masks)
