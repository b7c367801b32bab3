"""`fcam app`: one photo at a time in the browser, CAM beside F-CAM, a threshold that moves mask and boxes.

What the network says (`look`), how it is drawn (`view`, `words`), what a browser tab has on screen (`viewer`) and
what is saved (`keep`) know nothing of gradio; `page` lays it out, `command` serves it.
"""
