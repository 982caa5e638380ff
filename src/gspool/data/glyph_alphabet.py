"""The characters and fonts of the glyph collages, and their masks.

The characters are listed rather than computed, so that classes do not depend on the version of the fonts: letters
without a decomposition that all twelve DejaVu text fonts contain, look-alikes removed (of two letters whose masks,
scaled to one box, have a cosine of 0.9 or more, the first stays: "O" but not "o"; Latin A but not Cyrillic A), and, as
distractors, mathematical and other symbols selected in the same way.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
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
    """Return the file of a DejaVu font of matplotlib.

    Raises:
        FileNotFoundError: if this matplotlib does not contain the font.
    """
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    if not path.is_file():
        raise FileNotFoundError(
            f"the glyph data set needs the fonts of matplotlib, and {path} is missing; "
            f'reinstall it with pip install --force-reinstall "matplotlib>=3.9"'
        )
    return path


# The splits of one or two sizes: drawing them again takes most of the time of a small data set.
@functools.lru_cache(maxsize=6)
def glyph_masks(characters: str, size: int) -> UInt8[Tensor, "K 12 S S"]:
    """Draw every character in every font, scaled to fill its square up to a margin and centred.

    Fonts differ in size; scaling makes the shape of a glyph its only class information.
    """
    masks = np.zeros((len(characters), len(FACES), size, size), dtype=np.uint8)
    inner = max(round(size * 0.8), 1)
    for column, face in enumerate(FACES):
        font = ImageFont.truetype(str(face_file(face)), inner)
        for row, character in enumerate(characters):
            left, top, right, bottom = (int(edge) for edge in font.getbbox(character, anchor="ls"))
            canvas = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
            ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=font, anchor="ls")
            # The font reports the box of the advance; the glyph itself is often narrower.
            canvas = canvas.crop(canvas.getbbox())
            scale = inner / max(canvas.size)
            width, height = (max(round(side * scale), 1) for side in canvas.size)
            glyph = canvas.resize((width, height), Image.Resampling.BILINEAR)
            x, y = (size - width) // 2, (size - height) // 2
            masks[row, column, y : y + height, x : x + width] = np.asarray(glyph)
    return torch.from_numpy(masks)
