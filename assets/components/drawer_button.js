// On a phone the sidebar is a drawer over the page. This button opens it from the page, or closes it from within.

export default function (component) {
  const { data, parentElement } = component
  const button = parentElement.querySelector("button")
  if (!button || !data) return
  button.textContent = data.label
  button.dataset.place = data.place
  button.onclick = () => {
    const [id, inside] =
      data.place === "page" ? ["stExpandSidebarButton", ""] : ["stSidebarCollapseButton", " button"]
    const control =
      document.querySelector(`[data-testid="${id}"]${inside}`) || document.querySelector(`[data-testid="${id}"]`)
    if (control) control.click()
  }
}
