// The layers of the model from first to last, one cell a layer: the upper half how tokens are mixed, the lower the MLP.

export default function (component) {
  const { data, parentElement } = component
  const root = parentElement.querySelector(".strip")
  if (!root || !data) return
  const figure = document.createElement("div")
  figure.className = "cells"
  figure.setAttribute("role", "img")
  figure.setAttribute("aria-label", data.label)
  for (const layer of data.layers) {
    const cell = document.createElement("span")
    cell.className = "cell"
    cell.title = layer.title
    for (const kind of [layer.mixer, layer.mlp]) {
      const half = document.createElement("span")
      half.className = `half ${kind}`
      cell.append(half)
    }
    figure.append(cell)
  }
  const legend = document.createElement("div")
  legend.className = "legend"
  legend.setAttribute("aria-hidden", "true")
  for (const entry of data.legend) {
    const item = document.createElement("span")
    const chip = document.createElement("span")
    chip.className = `chip ${entry.kind}`
    item.append(chip, document.createTextNode(entry.name))
    legend.append(item)
  }
  root.replaceChildren(figure, legend)
}
