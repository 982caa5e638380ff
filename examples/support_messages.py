"""Requests of sixteen intents, each wrapped in small talk: an opening and a closing that say nothing about it."""

from __future__ import annotations

import random
from typing import NamedTuple

INTENTS = {
    "password": [
        "I forgot my password.", "My login no longer works.", "How can I reset my password?",
        "I am locked out of my account.", "The password link never arrives.", "Please let me sign in again.",
    ],
    "refund": [
        "I want my money back.", "Please refund the order.", "When will I be reimbursed?",
        "The amount should be returned to my card.", "I was charged, please undo it.", "Send back what I paid.",
    ],
    "late parcel": [
        "My parcel has not arrived.", "Where is my delivery?", "The package is a week late.",
        "The courier never came.", "Tracking has not moved for days.", "I am still waiting for the shipment.",
    ],
    "broken item": [
        "The lamp arrived in pieces.", "The screen is cracked.", "What you sent is damaged.",
        "It stopped working after one day.", "The handle broke off at once.", "I received a faulty device.",
    ],
    "cancel order": [
        "Please cancel my order.", "I do not want it any more.", "Stop the purchase before it ships.",
        "Can I still withdraw the order?", "I ordered by mistake, undo it.", "Call off what I bought yesterday.",
    ],
    "new address": [
        "I have moved to another street.", "Please change my address.", "Send it to my new home instead.",
        "My postcode is out of date.", "Update where I live.", "The delivery address is wrong.",
    ],
    "invoice": [
        "I need a bill for my records.", "Could you send the invoice?", "The receipt is missing.",
        "My accountant wants a tax document.", "Where do I download the invoice?", "Please issue a receipt with VAT.",
    ],
    "opening hours": [
        "When does the shop open?", "Are you open on Sunday?", "Until what time can I come by?",
        "What are your business hours?", "Is the store closed on holidays?", "How late are you there tonight?",
    ],
    "warranty": [
        "Is this still under warranty?", "How long is it guaranteed?", "Does the guarantee cover water?",
        "My warranty card is gone.", "I would like to extend the guarantee.", "Until when can I claim a free repair?",
    ],
    "voucher": [
        "My discount code is rejected.", "The coupon does not work.", "How do I redeem a gift card?",
        "The promotion was not applied.", "My voucher says expired.", "I have ten percent off, where do I enter it?",
    ],
    "wrong size": [
        "The shoes are too small.", "I need a larger shirt.", "Can I swap it for another size?",
        "The trousers do not fit.", "Please exchange medium for large.", "It is far too tight for me.",
    ],
    "subscription": [
        "End my monthly plan.", "I want to unsubscribe.", "Stop renewing my membership.",
        "How do I terminate the subscription?", "Please do not bill me every month.", "Close my premium plan.",
    ],
    "newsletter": [
        "Take me off the mailing list.", "I get too many promotional emails.", "Stop the weekly newsletter.",
        "No more advertising in my inbox.", "How do I switch off marketing mails?", "I never signed up for these news.",
    ],
    "payment failed": [
        "My card was declined.", "The payment does not go through.", "I get an error at checkout.",
        "The bank refuses the transaction.", "Paying by transfer fails.", "I cannot complete the purchase.",
    ],
    "spare part": [
        "Do you sell a new battery for it?", "I need a replacement filter.", "Where can I get a spare wheel?",
        "Is the charger available separately?", "I am looking for a new lid.", "Can I order a single screw?",
    ],
    "app crash": [
        "The app closes by itself.", "Your application freezes at the start.", "It crashes after the update.",
        "The program hangs on my phone.", "I only see a white screen in the app.", "The software stops responding.",
    ],
}  # fmt: skip
OPENINGS = [
    "Hello dear team, I hope this finds you well.", "Good morning from a rainy Hamburg!", "Hi, it's Anna again.",
    "Sorry to bother you on a Friday afternoon.", "My neighbour told me that you are always friendly.",
    "I have been a customer for twelve years now.", "Greetings, what a beautiful spring we have.",
    "First of all, thank you for your kind help last time.",
]  # fmt: skip
CLOSINGS = [
    "Thanks a lot and best regards, Tom.", "Have a lovely weekend with your family!", "Sent from my phone.",
    "Looking forward to hearing from you soon.", "My dog says hello too.", "Kind regards, Maria from the second floor.",
    "I will be on a train until the evening.", "All the best, and stay healthy.",
]  # fmt: skip


class Messages(NamedTuple):
    """Sentences and the number of the intent behind each."""

    sentences: list[str]
    labels: list[int]


def messages(intents: list[str], draw: random.Random, copies: int = 2) -> Messages:
    """Wrap every phrase of some intents in small talk, several times over."""
    sentences, labels = [], []
    for label, intent in enumerate(intents):
        for phrase in INTENTS[intent] * copies:
            sentences.append(f"{draw.choice(OPENINGS)} {phrase} {draw.choice(CLOSINGS)}")
            labels.append(label)
    return Messages(sentences, labels)
