// One bar for each rank of a job, on one scale.

function element(tag, className, text) {
  const node = document.createElement(tag)
  if (className) node.className = className
  if (text !== undefined && text !== null) node.textContent = text
  return node
}

export default function (component) {
  const { data, parentElement } = component
  const root = parentElement.querySelector(".ranks")
  if (!root || !data) return
  const list = element("ul")
  list.setAttribute("aria-label", data.label)
  for (const row of data.rows) {
    const item = element("li", row.note ? "worst" : "")
    const name = element("span", "name", row.name)
    if (row.note) name.append(element("span", "note", row.note))
    const track = element("span", "track")
    track.setAttribute("aria-hidden", "true")
    const fill = element("span", "fill")
    fill.style.width = `${Math.max(0, Math.min(1, row.share)) * 100}%`
    track.append(fill)
    item.append(name, track, element("span", "amount", row.amount))
    list.append(item)
  }
  root.replaceChildren(list)
}
