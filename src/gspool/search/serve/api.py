"""The HTTP interface for programs: send a picture, get its neighbours, its vector or its explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, File, Form, HTTPException, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from gspool.data import BrokenImageError
from gspool.data.decode import ImageTooLargeError, UnknownFormatError
from gspool.search.explanation.page import explanation_figures
from gspool.search.images import Limits
from gspool.search.serve.answers import (
    Embedding,
    Explained,
    Health,
    Labels,
    ManyNeighbours,
    Neighbours,
    OneAnswer,
    Problem,
    Shown,
)
from gspool.search.serve.docs_page import docs_page
from gspool.search.serve.lookup import MOST_NEIGHBOURS, Lookup, Neighbour, UnknownPictureError
from gspool.search.serve.results import as_png
from gspool.version import __version__

LARGEST_SIDE = 1024
# Of one request; its bytes are limited as those of one picture.
MOST_QUERIES = 100
REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"model": Problem, "description": "More bytes or pixels than the server takes."},
    415: {"model": Problem, "description": "Not a picture, or of a format that is not read."},
}
# Of every route: FastAPI would describe a list of objects, which is not what is sent.
OUT_OF_RANGE: dict[int | str, dict[str, Any]] = {
    422: {"model": Problem, "description": "A field that is missing or out of range, or a damaged picture."}
}
Answer = TypeVar("Answer")
Count = Annotated[int, Form(ge=1, le=MOST_NEIGHBOURS, description="At most this many.")]
Least = Annotated[float, Form(ge=-1, le=1, description="Leave out smaller cosines.")]
OnlyLabels = Annotated[list[str] | None, Form(description="Only this label; may be given several times.")]
Picture = Annotated[UploadFile, File(description="The file of a picture: JPEG, PNG, WebP, GIF or BMP.")]


def create_api(lookup: Lookup, limits: Limits) -> FastAPI:
    """Return the application with the routes for programs under /api and their description at /docs.

    Args:
        lookup: the model and the corpus.
        limits: of one upload.
    """
    # Without FastAPI's own pages: they load scripts from elsewhere, and stay empty without a network.
    app = FastAPI(title="gspool", version=__version__, docs_url=None, redoc_url=None, summary="Search by image.")
    app.include_router(_routes(lookup, limits.check()))

    @app.exception_handler(BrokenImageError)
    def refuse(request: Request, problem: BrokenImageError) -> JSONResponse:
        return JSONResponse({"detail": str(problem)}, status_of(problem))

    @app.exception_handler(RequestValidationError)
    def refuse_fields(request: Request, problem: RequestValidationError) -> JSONResponse:
        # A place is where the value came from and its name: ("body", "k").
        detail = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in problem.errors())
        return JSONResponse({"detail": detail}, 422)

    @app.get("/docs", include_in_schema=False)
    def describe(request: Request) -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi(), str(request.base_url)))

    return app


def status_of(problem: BrokenImageError) -> int:
    """Return the status of an upload that is not read.

    Example:
        >>> status_of(UnknownFormatError("words")), status_of(BrokenImageError("damaged"))
        (415, 422)
    """
    if isinstance(problem, ImageTooLargeError):
        return 413
    return 415 if isinstance(problem, UnknownFormatError) else 422


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
            max_bytes=limits.max_bytes,
            max_pixels=limits.max_pixels,
        )

    @routes.get("/labels", summary="The labels that a search can be limited to")
    def labels() -> Labels:
        return Labels(labels=lookup.labels)

    @routes.post("/search", summary="The pictures that are nearest to an image", responses=REFUSALS)
    def search(image: Picture, k: Count = 10, threshold: Least = -1.0, label: OnlyLabels = None) -> Neighbours:
        pixels = lookup.read(image.file, limits)
        return Neighbours(neighbours=_shown(_or_422(lambda: lookup.search(pixels, k, threshold, label or ()))))

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

        def answer(query: UploadFile | int) -> OneAnswer:
            name = query if isinstance(query, int) else query.filename or ""
            # One picture that cannot be read must not take the other answers away.
            try:
                known = lookup.picture(query).label if isinstance(query, int) else None
                asked = query if isinstance(query, int) else lookup.read(query.file, limits)
                found = _shown(lookup.search(asked, k, threshold, label or ()))
            except (BrokenImageError, UnknownPictureError) as problem:
                return OneAnswer(query=name, neighbours=[], problem=str(problem))
            return OneAnswer(query=name, label=known, neighbours=found)

        return ManyNeighbours(answers=_or_422(lambda: [answer(query) for query in queries]))

    @routes.post("/embed", summary="The unit vector of an image", responses=REFUSALS)
    def embed(image: Picture) -> Embedding:
        vector = lookup.embed(lookup.read(image.file, limits))
        return Embedding(embedding=vector.tolist(), fingerprint=lookup.index.settings.fingerprint)

    @routes.post("/explain", summary="Where the model looks in an image, and its prototypes", responses=REFUSALS)
    def explain(image: Picture) -> Explained:
        pixels = lookup.read(image.file, limits)
        explanation = _or_422(lambda: lookup.explain(pixels))
        return Explained(**explanation_figures(["upload"], [explanation])["images"][0])

    @routes.get("/pictures/{number}", summary="A picture of the corpus, as PNG", response_class=Response)
    def picture(
        number: Annotated[int, Path(ge=0, description="The id of a neighbour.")],
        side: Annotated[int, Query(ge=16, le=LARGEST_SIDE, description="Its longer side, at most.")] = 256,
    ) -> Response:
        try:
            image = lookup.thumbnail(number, side)
        except UnknownPictureError as problem:
            raise HTTPException(404, str(problem)) from problem
        except BrokenImageError as problem:
            raise HTTPException(410, str(problem)) from problem
        return Response(as_png(image, side), media_type="image/png")

    return routes


def _shown(found: Sequence[Neighbour]) -> list[Shown]:
    return [Shown(**each._asdict(), picture=f"/api/pictures/{each.id}") for each in found]


def _or_422(answer: Callable[[], Answer]) -> Answer:
    """Turn what a request got wrong into its status."""
    try:
        return answer()
    except ValueError as problem:
        raise HTTPException(422, str(problem)) from problem
