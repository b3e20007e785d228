"""VRAM Bill: the entry point. Declares the pages, and what stands around each of them."""

import streamlit as st

from ui import frame, sitemap, state
from ui.views import notes

st.set_page_config(
    page_title="VRAM Bill", page_icon=str(frame.ASSETS / "icon.svg"), layout="wide", initial_sidebar_state=340
)
pages = sitemap.pages()
page = st.navigation(pages, position="hidden")
state.begin(page.url_path)
words = state.words()

frame.style()
st.logo(str(frame.ASSETS / "logo.svg"), icon_image=str(frame.ASSETS / "icon.svg"), size="large")
with st.container(horizontal=True, vertical_alignment="center", key="top"):
    navigation = st.empty()
    frame.switches(words)
shown = state.current()
with navigation:
    frame.navigation(pages, words)
frame.title(state.page_of(page.url_path), words)
notes.link_note(words)
page.run()

if state.current() != shown:
    with navigation:
        frame.navigation(pages, words)
state.mirror(page.url_path)
