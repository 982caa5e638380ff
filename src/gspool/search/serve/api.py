"""The HTTP interface for programs: send a picture, get its neighbours, its vector or its explanation."""

from __future__ import annotations

from typing import IO, Annotated, Any

from fastapi import APIRouter, FastAPI, File, Form, HTTPException, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from torch import Tensor

from gspool.data import BrokenImageError
from gspool.data.decode import ImageTooLargeError, UnknownFormatError
from gspool.search.explanation.page import as_png
from gspool.search.model import Limits
from gspool.search.serve.docs_page import docs_page
from gspool.search.serve.lookup import MOST_NEIGHBOURS, Lookup, Neighbour, QuestionError, UnknownPictureError
from gspool.version import __version__

LARGEST_SIDE = 1024
# Of one request; its bytes are limited as those of one picture.
MOST_QUERIES = 100
# Its pixels are limited as those of so many of the largest pictures: by default, a hundred of a megapixel pass.
LARGEST_AT_ONCE = 4
# The first that an exception is an instance of.
STATUSES = {
    ImageTooLargeError: 413,
    UnknownFormatError: 415,
    BrokenImageError: 422,
    QuestionError: 422,
    UnknownPictureError: 404,
}
Count = Annotated[int, Form(ge=1, le=MOST_NEIGHBOURS, description="At most this many.")]
Least = Annotated[float, Form(ge=-1, le=1, description="Leave out smaller cosines.")]
OnlyLabels = Annotated[list[str] | None, Form(description="Only this label; may be given several times.")]
Picture = Annotated[UploadFile, File(description="The file of a picture: JPEG, PNG, WebP, GIF or BMP.")]


class Health(BaseModel):
    """What is served."""

    status: str = Field(description="ok")
    version: str = Field(description="Version of gspool.")
    pooling: str = Field(description="Pooling layer of the model.")
    fingerprint: str = Field(description="Of the model; vectors compare within one fingerprint.")
    dim: int = Field(description="Length of a vector.")
    pictures: int = Field(description="Number of pictures in the corpus.")
    exact: bool = Field(description="Whether search is exact, or uses an approximate index.")
    max_bytes: int = Field(description="Largest upload in bytes.")
    max_pixels: int = Field(description="Largest upload in pixels, width times height.")


class Labels(BaseModel):
    """The labels of the corpus, sorted."""

    labels: list[str]


class Neighbours(BaseModel):
    """Pictures that were found, nearest first."""

    neighbours: list[Neighbour]


class OneAnswer(Neighbours):
    """The neighbours of one query of several."""

    query: str | int = Field(description="The file name of an image, or the id of a picture of the corpus.")
    label: str | None = Field(default=None, description="Of a picture of the corpus, where known.")
    problem: str | None = Field(default=None, description="Why there is no answer.")


class ManyNeighbours(BaseModel):
    """The neighbours of several queries: first those of the images, then those of the ids, in the order sent."""

    answers: list[OneAnswer]


class Embedding(BaseModel):
    """The embedding of an image."""

    embedding: list[float] = Field(description="A vector of length 1.")
    fingerprint: str = Field(description="Of the model that made it.")


class Explained(BaseModel):
    """Where the model looked; maps are lists of rows over the image as the model crops it."""

    grid: tuple[int, int] = Field(description="Rows and columns of the maps.")
    entropy: float = Field(description="1 is average pooling, 0 a single place.")
    patch_share: float = Field(description="Part of the embedding that comes from the places; the rest: class token.")
    weights: list[list[float]] = Field(description="Weight of each place; they sum to 1.")
    owners: list[list[int]] | None = Field(description="The prototype that takes most from each place.")
    attributes: list[float] | None = Field(description="Share of each prototype; they sum to 1.")


class Problem(BaseModel):
    """Why a request was refused, and what is allowed."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"model": Problem, "description": "More bytes or pixels than the server takes."},
    415: {"model": Problem, "description": "Not a picture, or of a format that is not read."},
}
# Of every route: FastAPI would describe a list of objects, which is not what is sent.
OUT_OF_RANGE: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "A field that is missing or out of range, or a damaged picture."}
}


def create_api(lookup: Lookup, limits: Limits) -> FastAPI:
    """Return the application with the routes for programs under /api and their description at /docs."""
    # Without FastAPI's own pages: they load scripts from elsewhere, and stay empty without a network.
    app = FastAPI(title="gspool", version=__version__, docs_url=None, redoc_url=None, summary="Search by image.")
    app.include_router(_routes(lookup, limits.check()))

    def refuse(request: Request, problem: Exception) -> JSONResponse:
        status = next(status for kind, status in STATUSES.items() if isinstance(problem, kind))
        return JSONResponse({"detail": str(problem)}, status)

    for kind in (BrokenImageError, QuestionError, UnknownPictureError):
        app.add_exception_handler(kind, refuse)

    @app.exception_handler(RequestValidationError)
    def refuse_fields(request: Request, problem: RequestValidationError) -> JSONResponse:
        # A place is where the value came from and its name: ("body", "k").
        detail = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in problem.errors())
        return JSONResponse({"detail": detail}, 422)

    @app.get("/docs", include_in_schema=False)
    def describe(request: Request) -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi(), str(request.base_url)))

    return app


def _routes(lookup: Lookup, limits: Limits) -> APIRouter:
    routes = APIRouter(prefix="/api", responses=OUT_OF_RANGE)

    @routes.get("/health", summary="Whether it runs, and what it serves")
    def health() -> Health:
        return Health(
            status="ok",
            version=__version__,
            pooling=lookup.model.settings.pooling,
            fingerprint=lookup.index.settings.fingerprint,
            dim=lookup.index.settings.dim,
            pictures=len(lookup.index),
            exact=lookup.index.approximation is None,
            **limits._asdict(),
        )

    @routes.get("/labels", summary="The labels that a search can be limited to")
    def labels() -> Labels:
        return Labels(labels=lookup.labels)

    @routes.post("/search", summary="The pictures that are nearest to an image", responses=REFUSALS)
    def search(image: Picture, k: Count = 10, threshold: Least = -1.0, label: OnlyLabels = None) -> Neighbours:
        return Neighbours(neighbours=lookup.search(lookup.read(image.file, limits), k, threshold, label or ()))

    @routes.post("/search_many", summary="The pictures that are nearest to several images in one request")
    def search_many(
        image: Annotated[list[UploadFile] | None, File(description="The file of a picture; several times.")] = None,
        id: Annotated[list[int] | None, Form(description="A picture of the corpus; several times.")] = None,
        k: Count = 10,
        threshold: Least = -1.0,
        label: OnlyLabels = None,
    ) -> ManyNeighbours:
        queries: list[UploadFile | int] = [*(image or ()), *(id or ())]
        if not 1 <= len(queries) <= MOST_QUERIES:
            raise HTTPException(422, f"send 1 to {MOST_QUERIES} queries as image or id, got {len(queries)}")

        most = left = LARGEST_AT_ONCE * limits.max_pixels

        def read(file: IO[bytes]) -> Tensor:
            nonlocal left
            # Counted before it is decoded, which takes its time also where it fails.
            count = lookup.pixels_in(file)
            # One that is too large by itself is refused as such, before it is decoded.
            if count <= limits.max_pixels:
                if count > left:
                    raise ImageTooLargeError(
                        f"all images of a request may have {most:,} pixels together; send this one in another"
                    )
                left -= count
            return lookup.read(file, limits)

        def answer(query: UploadFile | int) -> OneAnswer:
            name = query if isinstance(query, int) else query.filename or ""
            # One picture that cannot be read must not take the other answers away.
            try:
                known = lookup.picture(query).label if isinstance(query, int) else None
                asked = query if isinstance(query, int) else read(query.file)
                return OneAnswer(query=name, label=known, neighbours=lookup.search(asked, k, threshold, label or ()))
            except (BrokenImageError, UnknownPictureError) as problem:
                return OneAnswer(query=name, neighbours=[], problem=str(problem))

        return ManyNeighbours(answers=[answer(query) for query in queries])

    @routes.post("/embed", summary="The unit vector of an image", responses=REFUSALS)
    def embed(image: Picture) -> Embedding:
        vector = lookup.embed(lookup.read(image.file, limits))
        return Embedding(embedding=vector.tolist(), fingerprint=lookup.index.settings.fingerprint)

    @routes.post("/explain", summary="Where the model looks in an image, and its prototypes", responses=REFUSALS)
    def explain(image: Picture) -> Explained:
        return Explained(**lookup.explain(lookup.read(image.file, limits)).figures())

    @routes.get("/pictures/{number}", summary="A picture of the corpus, as PNG", response_class=Response)
    def picture(
        number: Annotated[int, Path(ge=0, description="The id of a neighbour.")],
        side: Annotated[int, Query(ge=16, le=LARGEST_SIDE, description="Its longer side, at most.")] = 256,
    ) -> Response:
        try:
            return Response(as_png(lookup.thumbnail(number, side), side), media_type="image/png")
        except BrokenImageError as problem:
            raise HTTPException(410, str(problem)) from problem

    return routes
