"""VRAM Bill: the entry point. Declares the pages, and what stands around each of them."""

import streamlit as st

from ui import frame, sitemap, state
from ui.views import notes

st.set_page_config(
    page_title="VRAM Bill", page_icon=str(frame.ASSETS / "icon.svg"), layout="wide", initial_sidebar_state=340
)
page = st.navigation(sitemap.pages(), position="hidden")
state.begin(page.url_path)
words = state.words()

frame.style()
st.logo(str(frame.ASSETS / "logo.svg"), icon_image=str(frame.ASSETS / "icon.svg"), size="large")
links = sitemap.links(page)
with st.container(horizontal=True, vertical_alignment="center", key="top"):
    places = frame.navigation_places(links)
    frame.switches(words)
shown = state.current()
frame.navigation(places, links, words)
frame.title(state.page_of(page.url_path), words)
notes.link_note(words)
page.run()

if state.current() != shown:
    frame.navigation(places, links, words)
state.mirror(page.url_path)
