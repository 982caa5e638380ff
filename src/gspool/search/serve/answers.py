"""The answers of the HTTP interface, field by field; FastAPI makes the OpenAPI description from them."""

from __future__ import annotations

from pydantic import BaseModel, Field


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


class Shown(BaseModel):
    """A picture that was found."""

    id: int = Field(description="Its number in the corpus.")
    score: float = Field(description="Cosine to the image that was sent, at most 1.")
    label: str | None = Field(description="Its label, where known.")
    name: str = Field(description="Its file name, without folders.")
    match: bool | None = Field(description="Whether the score reaches the threshold of the model, if it has one.")
    picture: str = Field(description="The route that shows it.")


class Neighbours(BaseModel):
    """Pictures that were found, nearest first."""

    neighbours: list[Shown]


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
    weights: list[list[float]] = Field(description="Weight of each place; they sum to 1.")
    owners: list[list[int]] | None = Field(description="The prototype that takes most from each place.")
    attributes: list[float] | None = Field(description="Share of each prototype; they sum to 1.")


class Problem(BaseModel):
    """Why a request was refused, and what is allowed."""

    detail: str
